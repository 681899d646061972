#!/bin/bash
cd /workspace || exit 1
touch recipe.md
