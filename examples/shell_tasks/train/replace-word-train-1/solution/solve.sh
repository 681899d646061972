#!/bin/bash
cd /workspace || exit 1
sed -i 's/fox/red/g' memo.txt
