#!/bin/bash
cd /workspace || exit 1
sort budget.txt > story.txt
