#!/bin/bash
cd /workspace || exit 1
tac letter.txt > plan.txt
