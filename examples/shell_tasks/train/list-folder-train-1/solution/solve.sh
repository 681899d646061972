#!/bin/bash
cd /workspace || exit 1
ls images > story.txt
