#!/bin/bash
cd /workspace || exit 1
wc -l < poem.txt > guide.txt
