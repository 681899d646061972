#!/bin/bash
cd /workspace || exit 1
cp poem.txt memo.txt
