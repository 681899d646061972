#!/bin/bash
cd /workspace || exit 1
sort -u poem.txt > survey.txt
