#!/bin/bash
cd /workspace || exit 1
mv tasks.txt survey.txt
