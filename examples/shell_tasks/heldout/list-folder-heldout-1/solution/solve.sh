#!/bin/bash
cd /workspace || exit 1
ls videos > script.txt
