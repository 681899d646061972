#!/bin/bash
cd /workspace || exit 1
tac survey.txt > memo.txt
