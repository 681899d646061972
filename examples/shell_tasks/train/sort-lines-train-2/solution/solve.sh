#!/bin/bash
cd /workspace || exit 1
sort menu.txt > report.txt
