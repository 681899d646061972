#!/bin/bash
cd /workspace || exit 1
grep rosa agenda.txt > notes.txt
