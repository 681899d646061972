#!/bin/bash
cd /workspace || exit 1
sort journal.txt > chores.txt
