#!/bin/bash
cd /workspace || exit 1
wc -l < memo.txt > recipe.txt
