#!/bin/bash
cd /workspace || exit 1
wc -l < diary.txt > survey.txt
