#!/bin/bash
cd /workspace || exit 1
echo bright cold >> memo.txt
