#!/bin/bash
cd /workspace || exit 1
tr a-z A-Z < journal.txt > novel.txt
