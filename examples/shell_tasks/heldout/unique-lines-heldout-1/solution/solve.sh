#!/bin/bash
cd /workspace || exit 1
sort -u ledger.txt > route.txt
