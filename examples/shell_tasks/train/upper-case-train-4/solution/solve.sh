#!/bin/bash
cd /workspace || exit 1
tr a-z A-Z < tasks.txt > notes.txt
