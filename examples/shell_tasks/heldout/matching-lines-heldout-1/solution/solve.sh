#!/bin/bash
cd /workspace || exit 1
grep elena journal.txt > essay.txt
