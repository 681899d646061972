#!/bin/bash
cd /workspace || exit 1
sort notes.txt > survey.txt
