#!/bin/bash
cd /workspace || exit 1
mv budget.txt games/
