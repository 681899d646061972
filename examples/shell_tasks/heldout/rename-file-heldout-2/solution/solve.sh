#!/bin/bash
cd /workspace || exit 1
mv script.txt summary.txt
