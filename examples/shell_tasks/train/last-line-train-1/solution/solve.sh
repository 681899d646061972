#!/bin/bash
cd /workspace || exit 1
tail -n 1 agenda.txt > survey.txt
