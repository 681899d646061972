#!/bin/bash
cd /workspace || exit 1
cp ledger.txt postcard.txt
