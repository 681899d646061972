#!/bin/bash
cd /workspace || exit 1
mv minutes.txt travel/
