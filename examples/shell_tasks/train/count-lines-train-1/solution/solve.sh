#!/bin/bash
cd /workspace || exit 1
wc -l < guide.txt > diary.txt
