#!/bin/bash
cd /workspace || exit 1
echo bright quick >> survey.txt
