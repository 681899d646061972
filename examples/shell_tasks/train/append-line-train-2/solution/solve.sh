#!/bin/bash
cd /workspace || exit 1
echo old blue >> recipe.txt
