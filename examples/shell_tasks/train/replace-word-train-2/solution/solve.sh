#!/bin/bash
cd /workspace || exit 1
sed -i 's/boat/house/g' diary.txt
