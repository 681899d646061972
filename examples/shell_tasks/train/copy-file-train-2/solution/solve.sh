#!/bin/bash
cd /workspace || exit 1
cp guide.txt menu.txt
