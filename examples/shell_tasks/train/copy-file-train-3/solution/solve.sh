#!/bin/bash
cd /workspace || exit 1
cp plan.txt report.txt
