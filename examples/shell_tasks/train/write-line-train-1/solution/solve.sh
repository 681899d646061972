#!/bin/bash
cd /workspace || exit 1
echo sky fox > recipe.txt
