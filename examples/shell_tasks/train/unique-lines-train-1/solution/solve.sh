#!/bin/bash
cd /workspace || exit 1
sort -u notes.txt > menu.txt
