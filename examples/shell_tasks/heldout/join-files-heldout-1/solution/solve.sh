#!/bin/bash
cd /workspace || exit 1
cat minutes.txt novel.txt > script.txt
