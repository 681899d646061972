#!/bin/bash
cd /workspace || exit 1
head -n 1 plan.txt > draft.txt
