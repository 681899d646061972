#!/bin/bash
cd /workspace || exit 1
echo bright blue >> survey.txt
