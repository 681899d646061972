#!/bin/bash
cd /workspace || exit 1
head -n 1 ledger.txt > journal.txt
