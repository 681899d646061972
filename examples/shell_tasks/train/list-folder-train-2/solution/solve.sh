#!/bin/bash
cd /workspace || exit 1
ls tools > survey.txt
