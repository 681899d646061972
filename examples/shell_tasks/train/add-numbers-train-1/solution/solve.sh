#!/bin/bash
cd /workspace || exit 1
echo $((87 + 85)) > story.txt
