#!/bin/bash
cd /workspace || exit 1
sed -i 's/happy/forest/g' summary.txt
