#!/bin/bash
cd /workspace || exit 1
echo happy tall >> invoice.txt
