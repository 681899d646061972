#!/bin/bash
cd /workspace || exit 1
tail -n 1 report.txt > plan.txt
