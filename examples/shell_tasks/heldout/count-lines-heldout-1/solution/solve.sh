#!/bin/bash
cd /workspace || exit 1
wc -l < postcard.txt > essay.txt
