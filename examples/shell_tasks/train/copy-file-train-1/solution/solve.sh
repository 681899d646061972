#!/bin/bash
cd /workspace || exit 1
cp letter.txt survey.txt
