#!/bin/bash
cd /workspace || exit 1
echo $((61 + 65)) > journal.txt
