#!/bin/bash
cd /workspace || exit 1
echo blue house > guide.txt
