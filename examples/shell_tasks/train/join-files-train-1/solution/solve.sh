#!/bin/bash
cd /workspace || exit 1
cat notes.txt memo.txt > recipe.txt
