#!/bin/bash
cd /workspace || exit 1
cat tasks.txt memo.txt > budget.txt
