#!/bin/bash
cd /workspace || exit 1
sort tasks.txt > story.txt
