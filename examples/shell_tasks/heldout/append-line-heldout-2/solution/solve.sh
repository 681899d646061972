#!/bin/bash
cd /workspace || exit 1
echo tall dark >> essay.txt
