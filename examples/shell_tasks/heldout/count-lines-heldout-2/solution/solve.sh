#!/bin/bash
cd /workspace || exit 1
wc -l < ledger.txt > journal.txt
